// An HTTP service by Express whose handlers have known costs. Prints `phase NAME SECONDS`, by the process's CPU clock.
'use strict';
const express = require('express');

const catalogue = [];
for (let i = 0; i < 1000; i++) {
  catalogue.push({ name: `item ${i}`, price: i * 37 % 101, text: `colour ${i % 7} size ${i % 5}` });
}
const spent = { cart: 0, search: 0, report: 0 };

function handleCart(request, response) {
  let total = 0;
  for (let round = 0; round < 300; round++) {
    for (const item of catalogue) total += item.price * round % 7;
  }
  response.json({ total });
}

function handleSearch(request, response) {
  const found = catalogue.filter((item) => /colour [135] size (\d+)/.test(item.text));
  found.sort((left, right) => left.price - right.price || left.name.localeCompare(right.name));
  response.json(found);
}

function handleReport(request, response) {
  const rows = catalogue.slice(0, 600).map((item) => `<p>${item.name}: ${item.price.toFixed(2)}, ${item.text.toUpperCase()}</p>`);
  response.send(`<h1>report</h1>${rows.join('')}`);
}

function cpuSeconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

function timed(name, handler) {
  return (request, response) => {
    const start = cpuSeconds();
    handler(request, response);
    spent[name] += cpuSeconds() - start;
  };
}

const app = express();
app.get('/cart', timed('cart', handleCart));
app.get('/search', timed('search', handleSearch));
app.get('/report', timed('report', handleReport));
const server = app.listen(8000, '127.0.0.1');
process.on('SIGTERM', () => {
  for (const [name, seconds] of Object.entries(spent)) console.log(`phase ${name} ${seconds.toFixed(6)}`);
  server.close();
  process.exit(0);
});
