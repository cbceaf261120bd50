"""The pipe between two processes: headers and arrays arrive as they were sent."""

from __future__ import annotations

import io

import numpy as np
import pytest

from sruexport.engines.wire import receive, send

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


def there_and_back(header, arrays=None):
    stream = io.BytesIO()
    send(stream, header, arrays)
    stream.seek(0)
    found = receive(stream)
    assert not stream.read(), "nothing is left in the pipe"
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 3, 4)], ids=str)
def test_arrays_of_every_dtype_and_shape(dtype, shape):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    _, found = there_and_back({}, {"x": array})
    assert found["x"].dtype == array.dtype
    assert found["x"].shape == shape
    np.testing.assert_array_equal(found["x"], array)


def test_numbers_keep_all_their_bits():
    bits = np.array([0x7FC00001, 0xFFC00000, 0x80000000, 0x00000001, 0x7F800000], np.uint32)
    _, found = there_and_back({}, {"x": bits.view(np.float32)})
    np.testing.assert_array_equal(found["x"].view(np.uint32), bits)


@pytest.mark.parametrize(
    "array",
    [np.arange(24).reshape(4, 6)[::-2, 1::2], np.arange(6).reshape(2, 3).T, np.arange(4, dtype=">i4")],
    ids=["strided", "transposed", "big-endian"],
)
def test_arrays_that_lie_otherwise_in_memory(array):
    _, found = there_and_back({}, {"x": array})
    np.testing.assert_array_equal(found["x"], array)


def test_several_arrays_come_in_order_with_the_header():
    header, found = there_and_back({"seconds": 0.5, "error": "ä\n"}, {"b": np.ones(2), "a ü/0": np.zeros((1, 2))})
    assert header == {"seconds": 0.5, "error": "ä\n"}
    assert list(found) == ["b", "a ü/0"]


def test_messages_follow_each_other():
    stream = io.BytesIO()
    for number in range(3):
        send(stream, {"number": number}, {"x": np.full(number, number)})
    stream.seek(0)
    for number in range(3):
        header, found = receive(stream)
        assert header == {"number": number}
        np.testing.assert_array_equal(found["x"], np.full(number, number))


def test_a_message_that_is_cut_off_anywhere_is_the_other_side_gone():
    stream = io.BytesIO()
    send(stream, {"a": 1}, {"x": np.arange(3)})
    whole = stream.getvalue()
    for length in range(len(whole)):
        with pytest.raises(EOFError):
            receive(io.BytesIO(whole[:length]))
