// Phases of known shares of the CPU: phases.js SECONDS. Prints `phase NAME SECONDS`, by the process's CPU clock.
'use strict';
const assert = require('assert');

function fib(n) {
  return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

function sieve(n) {
  const composite = new Uint8Array(n + 1);
  let count = 0;
  for (let candidate = 2; candidate <= n; candidate++) {
    if (!composite[candidate]) {
      count++;
      for (let multiple = 2 * candidate; multiple <= n; multiple += candidate) composite[multiple] = 1;
    }
  }
  return count;
}

function text(n) {
  const records = [];
  for (let i = 0; i < n; i++) records.push({ name: `item ${i}`, value: i * 1.5 });
  return JSON.stringify(records).match(/item \d+/g).length;
}

function runFib() { assert(fib(16) === 987); }
function runSieve() { assert(sieve(5000) === 669); }
function runText() { assert(text(50) === 50); }

function cpuSeconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

const phases = [['fib', runFib, 0.5, 0], ['sieve', runSieve, 0.3, 0], ['text', runText, 0.2, 0]];
const seconds = Number(process.argv[2]);
for (let done = 0.25; done < seconds + 0.125; done += 0.25) {
  for (const phase of phases) {
    const [, run, weight, used] = phase;
    const start = cpuSeconds();
    const end = start + done * weight - used;
    let now = start;
    while (now < end) {
      run();
      now = cpuSeconds();
    }
    phase[3] += now - start;
  }
}
for (const [name, , , used] of phases) console.log(`phase ${name} ${used.toFixed(6)}`);
console.log(`total ${cpuSeconds().toFixed(6)}`);
