// Chains of calls that report their stack and block, or run without an end.
//
// usage: node Live.js chain WARM | busy
'use strict';
const fs = require('fs');

Error.stackTraceLimit = Infinity;
Error.prepareStackTrace = (_, sites) => sites
  .map(site => [site.getFunctionName() || '(anonymous)', site.getFileName() || '-', site.getLineNumber() || 0].join('|'))
  .join('\t');

const cell = new Int32Array(new SharedArrayBuffer(4));
let stopped = false;

function report() {
  fs.writeSync(1, new Error().stack + '\n');
  Atomics.wait(cell, 0, 0);
}

// Several targets, so that no compiler expects one of them.
const targets = [() => 0, () => 1, () => 2, () => 3, () => 4, () => 5, report];

function stop(which) {
  return targets[which]();
}

class Shape {
  constructor(which) {
    this.area = this.measure(which);
  }

  get size() {
    return Shape.twice(this.which);
  }

  measure(which) {
    this.which = which;
    return this.size;
  }

  static twice(which) {
    return 2 *
      stop(which);
  }
}

function recurse(depth, which) {
  if (depth > 0) {
    return recurse(depth - 1, which) + 1;
  }
  return new Shape(which).area;
}

const arrow = which => recurse(3, which);

function viaMap(which) {
  return [1].map(function inMap() {
    return arrow(which);
  })[0];
}

function viaSort(which) {
  let found = 0;
  [2, 1].sort((a, b) => {
    found = viaMap(which);
    return a - b;
  });
  return found;
}

function* steps(which) {
  yield 1;
  yield viaSort(which);
}

function viaGenerator(which) {
  let sum = 0;
  for (const step of steps(which)) {
    sum += step;
  }
  return sum;
}

const holder = {
  method(which) {
    return JSON.parse('[1]', (key, value) => key === '0' ? viaGenerator(which) : value);
  },
};
holder.assigned = function (which) {
  return this.method(which);
};

function small(which) {
  return holder.assigned(which) ? 1 : 0;
}

function middle(which) {
  return small(which) + 1;
}

function viaReplace(which) {
  return 'a'.replace(/a/, () => String(middle(which)));
}

function viaReflect(which) {
  return Reflect.apply(viaReplace, null, [which]);
}

const bound = viaReflect.bind(null);

function viaEval(which) {
  return eval('bound(which)');
}

function chain(warm) {
  for (let i = 0; i < warm; i++) {
    viaEval(i % (targets.length - 1));
  }
  viaEval(targets.length - 1);
}

// Work of all kinds.
function hash(text) {
  let sum = 0;
  for (let i = 0; i < text.length; i++) {
    sum = (sum * 31 + text.charCodeAt(i)) | 0;
  }
  return sum;
}

function sortNumbers(count) {
  const numbers = Array.from({ length: count }, (_, i) => (i * 7919) % 1009);
  return numbers.sort((a, b) => a - b)[0];
}

function objects(count) {
  const map = new Map();
  for (let i = 0; i < count; i++) {
    map.set('key' + i, { id: i, text: String(i) });
  }
  return JSON.stringify([...map.values()].filter(value => value.id % 3 === 0)).length;
}

function expressions(text) {
  return text.replace(/(\d+)-(\w+)/g, (_, number, word) => word + number).length;
}

function fibonacci(n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

function busy() {
  let sum = 0;
  fs.writeSync(1, 'busy\n');
  for (;;) {
    sum += hash('some text of a length') + sortNumbers(300) + objects(200) + fibonacci(15);
    sum += expressions('12-ab 345-cde 6-f '.repeat(20));
  }
}

if (process.argv[2] === 'busy') {
  busy();
} else {
  chain(Number(process.argv[3]));
}
