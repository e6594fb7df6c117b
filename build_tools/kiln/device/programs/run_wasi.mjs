// run_wasi.mjs: run a WebAssembly program for WASI in Node.js; its files are those of the working folder.
//
//     node run_wasi.mjs PROGRAM [ARGUMENT …]
import { readFile } from "node:fs/promises";
import { WASI } from "node:wasi";

const [program, ...words] = process.argv.slice(2);
const wasi = new WASI({
  version: "preview1",
  args: [program, ...words],
  preopens: { ".": process.cwd() },
  returnOnExit: true,
});
const module = await WebAssembly.compile(await readFile(program));
const instance = await WebAssembly.instantiate(module, { wasi_snapshot_preview1: wasi.wasiImport });
process.exitCode = wasi.start(instance);
