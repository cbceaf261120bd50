// The shape of a tensor of up to three axes, on the stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace sruexport::ort {

struct Shape {
  static constexpr std::size_t most = 3;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) {
    for (const std::int64_t size : sizes) axes[rank++] = size;
  }

  std::int64_t operator[](std::size_t axis) const { return axes[axis]; }

  bool operator==(const Shape& other) const {
    if (rank != other.rank) return false;
    for (std::size_t axis = 0; axis < rank && axis < most; ++axis) {
      if (axes[axis] != other.axes[axis]) return false;
    }
    return true;
  }
  bool operator!=(const Shape& other) const { return !(*this == other); }

  std::string words() const {
    if (rank > most) return std::to_string(rank) + " axes";
    std::string text = "[";
    for (std::size_t axis = 0; axis < rank; ++axis) text += (axis ? ", " : "") + std::to_string(axes[axis]);
    return text + "]";
  }

  std::size_t rank = 0;  // more than `most`: the axes are not known
  std::int64_t axes[most] = {};
};

}  // namespace sruexport::ort
