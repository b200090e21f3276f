// The table of functions: their own time, and that with their callees.

class Functions {
  constructor(profile, view, flame) {
    this.profile = profile;
    this.view = view;
    this.most = 1;
    const value = (key) => (row) => row[key];
    this.table = new DataTable('functions', [
      { title: 'Function', class: 'name', value: (row) => row.name, cell: (row) => link(row.name, 'Find it in the flame graph', () => flame.find(row.name)) },
      { title: 'Module', value: (row) => row.module, cell: (row) => row.module, class: 'name' },
      { title: 'Code', value: (row) => row.kind, cell: (row) => row.kind },
      { title: 'Samples', number: true, value: value('samples'), cell: (row) => count(row.samples), hint: 'Samples in the function itself' },
      { title: 'Self', number: true, value: value('share'), cell: (row) => percent(row.share) },
      { title: '95 % interval', number: true, value: value('low'), cell: (row) => intervalText(row.low, row.high) },
      { title: 'In total', number: true, value: value('total'), cell: (row) => count(row.total), hint: 'Samples with the function on their stack, each counted once' },
      { title: 'Total', number: true, value: value('totalShare'), cell: (row) => percent(row.totalShare) },
      { title: '', class: 'bar-cell', cell: (row) => shareBar(row.share, row.low, row.high, this.most, row.kind === 'user' ? '' : 'kernel') },
    ], { sort: 4, thing: 'function', text: (row) => `${row.name} ${row.module} ${row.kind}` });
    view.onChange(() => this.update());
    this.update();
  }

  update() {
    const { profile, view } = this;
    const whole = view.whole && view.process === null;
    const found = whole ? this.ofRun() : this.ofPart();
    const { symbol, module, modules, kind } = profile.functions;
    const rows = found.map((row) => ({ ...row, name: symbol[row.id], module: modules[module[row.id]] ?? '', kind: kind[row.id] === 'u' ? 'user' : 'kernel' }));
    this.most = rows.reduce((most, row) => Math.max(most, row.high), 0);
    $('functions-note').textContent = intervalNote({ whole, sums: () => view.sums() }, profile)
      + (whole && profile.functionsLeftOut > 0 ? ` ${count(profile.functionsLeftOut)} functions with fewer samples are left out; pick a time or a process to see them.` : '');
    this.table.set(rows);
  }

  ofRun() {
    return this.profile.estimates.map(([id, samples, share, low, high, total, totalShare]) => ({ id, samples, share, low, high, total, totalShare }));
  }

  ofPart() {
    const { tree, functions } = this.profile;
    const sums = this.view.sums();
    const size = functions.symbol.length;
    const [own, ownCount, all, allCount] = [0, 0, 0, 0].map(() => new Float64Array(size));
    const time = addUp(tree, sums.nodeTime);
    const counts = addUp(tree, sums.nodeCount);
    for (let node = 1; node < tree.size; node++) {
      const func = tree.func[node];
      own[func] += sums.nodeTime[node];
      ownCount[func] += sums.nodeCount[node];
      if (tree.outermost[node] === 1) {
        all[func] += time[node];
        allCount[func] += counts[node];
      }
    }
    const rows = [];
    for (let id = 0; id < size; id++) {
      if (allCount[id] > 0 && (functions.kind[id] === 'u' || functions.kind[id] === 'k')) {
        const share = own[id] / (sums.time || 1);
        rows.push({ id, samples: ownCount[id], share, ...wilson(share, sums.count), total: allCount[id], totalShare: all[id] / (sums.time || 1) });
      }
    }
    return rows;
  }
}
