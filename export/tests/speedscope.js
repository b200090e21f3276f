// Reads profiles with speedscope's own importers, and prints what they found as JSON, one line per file.
//
// Usage: node speedscope.js BUNDLE FILE...
//
// BUNDLE is the page's script of speedscope's npm package (dist/release/speedscope-*.js). It is evaluated up to where it would draw
// the page, with a stand-in for what a browser has.
'use strict'
const fs = require('node:fs')
const path = require('node:path')
const vm = require('node:vm')

const [bundle, ...files] = process.argv.slice(2)
let script = fs.readFileSync(bundle, 'utf8')
const importers = script.match(/return\(await (\w+)\)\.importProfilesFromArrayBuffer\(/)
const drawing = script.lastIndexOf('console.log(`speedscope v')
if (!importers || drawing < 0) {
  throw new Error('this is not the script of speedscope that is known here')
}
script = `${script.slice(0, drawing)}globalThis.importers=${importers[1]};throw globalThis.enough})()`

// Anything that is asked of it is there, and does nothing.
const anything = new Proxy(function () {}, {
  get: (_, key) => (key === Symbol.toPrimitive ? () => '' : key === 'length' ? 0 : anything),
  set: () => true,
  apply: () => anything,
  construct: () => anything,
  has: () => true,
})
const enough = new Error('enough')
const page = {
  enough,
  console: { log() {}, warn() {}, error() {}, time() {}, timeEnd() {} },
  document: anything,
  navigator: anything,
  localStorage: anything,
  location: { hash: '', protocol: 'file:', href: 'file:///' },
  setTimeout, clearTimeout, TextDecoder, TextEncoder, URL, atob, btoa, Uint8Array, ArrayBuffer, DataView,
  requestAnimationFrame() {}, addEventListener() {}, matchMedia: anything,
}
page.globalThis = page
page.self = page
// Not anything: what is looked for in it, like a library for numbers of 64 bits, must not be found.
page.window = page
vm.createContext(page)
try {
  vm.runInContext(script, page)
} catch (error) {
  if (error !== enough) throw error
}

async function main() {
  const { importProfilesFromArrayBuffer } = await page.importers
  for (const file of files) {
    const bytes = new Uint8Array(fs.readFileSync(file))
    const group = await importProfilesFromArrayBuffer(path.basename(file), bytes.buffer)
    const profiles = (group ? group.profiles : []).map(profile => {
      const frames = []
      profile.forEachFrame(frame => frames.push(frame.name))
      return { name: profile.getName(), weight: profile.getTotalWeight(), frames }
    })
    console.log(JSON.stringify(profiles))
  }
}
main().catch(error => {
  console.error(error)
  process.exitCode = 1
})
