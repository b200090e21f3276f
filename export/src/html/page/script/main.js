// Puts the page together.

/** Values derived from the profile that are needed often. */
function prepareProfile(profile) {
  const { tree, processes, functions } = profile;
  tree.functions = functions.symbol.length;
  tree.first = new Int32Array(tree.size);
  tree.next = new Int32Array(tree.size);
  // The end of the nodes that a node calls, at any depth.
  tree.end = Int32Array.from({ length: tree.size }, (_, node) => node + 1);
  // Backwards, so that branches are in the order of their numbers.
  for (let node = tree.size - 1; node > 0; node--) {
    const parent = tree.parent[node];
    tree.end[parent] = Math.max(tree.end[parent], tree.end[node]);
    tree.next[node] = tree.first[tree.parent[node]];
    tree.first[tree.parent[node]] = node;
  }
  // Processes of one name are one program.
  const names = [...new Set(processes.map(commName))];
  const places = new Map(names.map((name, i) => [name, i]));
  profile.programs = { names, of: Int32Array.from(processes, (row) => places.get(commName(row))) };
  return profile;
}

/** Shows the chosen time and process, and resets them. */
function showChosen(profile, view, flame) {
  const [from, to] = view.seconds();
  const all = view.whole && view.process === null;
  const time = view.whole && !profile.isPart ? `Whole run, ${duration(profile.report.duration_s)}` : `${moment(from, profile.step)} to ${moment(to, profile.step)} s, ${duration(to - from)}`;
  $('chosen').textContent = view.process === null ? time : `${processName(profile.processes[view.process])} · ${time}`;
  $('chosen').parentElement.classList.toggle('part', !all);
  $('reset').hidden = all;
  $('reset').onclick = () => resetAll(view, flame);
}

function resetAll(view, flame) {
  flame.endSearch();
  flame.endZoom();
  view.only(null);
  view.pickAll();
}

function listenToKeys(view, flame) {
  document.addEventListener('keydown', (event) => {
    const inField = event.target.matches?.('input[type=search], input[type=number], select');
    if (event.key === 'Escape') {
      // The innermost choice first: search and zoom of the flame graph, then the picked time.
      if (!flame.endSearch() && !flame.endZoom()) {
        resetAll(view, flame);
      }
    } else if (event.key === '/' && !inField && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      $('flame').scrollIntoView();
      $('search').focus({ preventScroll: true });
      $('search').select();
    }
  });
}

async function main() {
  theme.start();
  const profile = prepareProfile(await load());
  const view = new View(profile);
  $('main').hidden = false;
  const timeline = new Timeline(profile, view);
  const flame = new Flame(profile, view);
  const processes = new Processes(profile, view);
  new HeatMap(profile, view, timeline);
  new Functions(profile, view, flame);
  new ByKind(profile, view);
  const find = (name) => flame.find(name);
  showSummary(profile, { showProgram: (name) => processes.find(name), find });
  showChanges(profile, view.sums(), find);
  showCode(profile);
  showTasks(profile);
  showAccounting(profile);
  showHost(profile);
  showExits(profile);
  showLatency(profile);
  new Log(profile, view, timeline);
  showMeasured(profile);
  view.onChange(() => showChosen(profile, view, flame));
  showChosen(profile, view, flame);
  listenToKeys(view, flame);
  new PageAddress(profile, view, flame);
}

main().catch((error) => {
  $('problem').textContent = `The page cannot show its profile. ${error.message}`;
  $('problem').hidden = false;
});
