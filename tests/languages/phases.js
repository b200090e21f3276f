// Functions that measure themselves: phases.js SECONDS. Prints `phase NAME SECONDS`, by the process's CPU clock.
'use strict';

const spent = new Map();

function now() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

function work(limit) {
  let count = 0;
  while (now() < limit) {
    for (let i = 0; i < 3000; i++) {
      count += i * i % 7;
    }
  }
  return count;
}

function plain(limit) {
  return work(limit);
}

function recursive(limit, depth = 40) {
  return depth > 0 ? recursive(limit, depth - 1) : work(limit);
}

function calledBack(limit) {
  return [0].map(() => work(limit));
}

function fail(count) {
  throw new Error(`count ${count}`);
}

function thrown(limit) {
  let count = 0;
  while (now() < limit) {
    try {
      fail(count);
    } catch (error) {
      count += error.message.length;
    }
  }
  return count;
}

function* values(limit) {
  yield work(limit);
}

function generated(limit) {
  return [...values(limit)];
}

function measure(phase, seconds) {
  const start = now();
  phase(start + seconds);
  spent.set(phase.name, (spent.get(phase.name) || 0) + now() - start);
}

console.log('begun');
for (let round = 0; round < Number(process.argv[2]) * 20; round++) {
  measure(plain, 0.012);
  measure(recursive, 0.008);
  measure(generated, 0.006);
  measure(thrown, 0.005);
  measure(calledBack, 0.004);
}
for (const [name, seconds] of spent) {
  console.log(`phase ${name} ${seconds}`);
}
