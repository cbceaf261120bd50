// ONNX Runtime Web in Node: opens one file, and runs it as often as it is asked.
//
//     node onnxruntime_web.mjs ENVIRONMENT FILE
//
// Requests come on stdin, answers go to stdout, both as wire.py writes them.

import { readFileSync, readSync, writeSync } from "node:fs";
import { createRequire } from "node:module";

// [what NumPy calls a type, what ONNX Runtime calls it, an array of it]
const TYPES = [
  ["<f4", "float32", Float32Array],
  ["<f2", "float16", Uint16Array],
  ["<f8", "float64", Float64Array],
  ["<i8", "int64", BigInt64Array],
  ["<i4", "int32", Int32Array],
  ["<i2", "int16", Int16Array],
  ["|i1", "int8", Int8Array],
  ["|u1", "uint8", Uint8Array],
  ["|b1", "bool", Uint8Array],
];

function read(size) {
  const data = Buffer.from(new ArrayBuffer(size)); // aligned for any type
  for (let at = 0; at < size; ) {
    const count = readSync(0, data, at, size - at, null);
    if (count === 0) process.exit(0); // nobody asks any more
    at += count;
  }
  return data;
}

function write(data) {
  for (let at = 0; at < data.length; ) at += writeSync(1, data, at);
}

function receive(ort) {
  const header = JSON.parse(read(Number(read(8).readBigUInt64LE())).toString());
  const tensors = {};
  for (const [name, dtype, shape] of header.arrays) {
    const [, type, Kind] = TYPES.find(([numpy]) => numpy === dtype);
    const count = shape.reduce((product, dim) => product * dim, 1);
    const data = read(count * Kind.BYTES_PER_ELEMENT);
    tensors[name] = new ort.Tensor(type, new Kind(data.buffer, 0, count), shape);
  }
  return tensors;
}

function send(header, tensors = {}) {
  const arrays = Object.entries(tensors).map(([name, tensor]) => {
    const [numpy] = TYPES.find(([, type]) => type === tensor.type);
    return [name, numpy, tensor.dims];
  });
  const text = Buffer.from(JSON.stringify({ ...header, arrays }));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  write(length);
  write(text);
  for (const { data } of Object.values(tensors)) {
    write(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  }
}

// What the library prints must not get between the answers.
for (const name of ["log", "info", "debug"]) console[name] = console.error;

const [environment, file] = process.argv.slice(2);
const ort = createRequire(`${environment}/`)("onnxruntime-web");
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

async function answering(task) {
  try {
    send({}, await task());
  } catch (error) {
    send({ error: String(error?.message ?? error) });
  }
}

let session;
await answering(async () => {
  session = await ort.InferenceSession.create(new Uint8Array(readFileSync(file)), { executionProviders: ["wasm"] });
});
for (;;) {
  const feeds = receive(ort);
  await answering(() => session.run(feeds));
}
