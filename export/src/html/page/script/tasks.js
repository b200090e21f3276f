// States of tasks by exact mode: the time of each task in each state.

const TASK_STATES = [['running', 'user', 'running'], ['interrupted', 'interrupt', 'interrupted'], ['sampler', 'sampler', 'in vprof\'s sampler'], ['runnable', 'waiting', 'runnable'], ['disk', 'vmm', 'uninterruptible sleep'], ['sleep', 'halted', 'sleep'], ['stopped', 'paused', 'stopped'], ['zombie', 'idle', 'ended'], ['unknown', 'unsampled', 'not known']];

function showTasks(profile) {
  const { exact } = profile;
  if (!exact) {
    return;
  }
  $('tasks').hidden = false;
  document.querySelector('.bar a[href="#tasks"]').parentElement.hidden = false;
  const lost = exact.complete ? 'No event was lost: times are exact.' : 'Events were lost: times are not exact.';
  $('tasks-note').textContent = `From ${duration(exact.from_s)} to ${duration(exact.to_s)} after the start of the run. ${lost}${profile.tasksLeftOut > 0 ? ` ${counted(profile.tasksLeftOut, 'task')} with less time left out.` : ''}`;
  legend($('tasks-legend'), TASK_STATES.map(([, colour, name]) => [name, colour]));
  const inState = (task, wanted) => task.states.filter((state) => state.state === wanted).reduce((sum, state) => sum + state.s, 0);
  const slept = (task) => waitReasons(task.states).slice(0, 3).map(([reason, s]) => `${reason} ${duration(s)}`).join(', ');
  const table = new DataTable('tasks', [
    { title: 'Task', class: 'name', value: taskName, cell: (task) => taskName(task) },
    { title: 'Tid', number: true, value: (task) => task.tid, cell: (task) => String(task.tid) },
    { title: 'Life', number: true, value: (task) => task.life_s, cell: (task) => duration(task.life_s) },
    { title: 'Running', number: true, value: (task) => task.running_s, cell: (task) => duration(task.running_s) },
    { title: 'Runnable', number: true, value: (task) => inState(task, 'runnable'), cell: (task) => duration(inState(task, 'runnable')) },
    { title: 'Longest delay', number: true, value: (task) => task.delay?.max_s ?? 0, cell: longestDelay },
    { title: 'Wait reasons', class: 'name', value: slept, cell: slept },
    { title: '', class: 'bar-cell', cell: stateBar },
  ], { sort: 3, thing: 'task' });
  table.set(exact.tasks);
  showWakeups(exact);
}

const taskName = (task) => `${task.comm}#${task.instance}${task.thread && task.thread !== task.comm ? ` (${task.thread})` : ''}`;

/** The longest wait for a CPU, with its begin. */
const longestDelay = ({ delay }) => (delay ? el('span', { title: `from ${duration(delay.max_from_s)} after the start of the run on` }, duration(delay.max_s)) : '');

/** The time by wait reason, the longest first: a task waits for one reason in several states. */
function waitReasons(states) {
  const sums = new Map();
  for (const { wait_reason: reason, s } of states.filter((state) => state.wait_reason !== '')) {
    sums.set(reason, (sums.get(reason) ?? 0) + s);
  }
  return [...sums].sort((a, b) => b[1] - a[1]);
}

/** The states of a task side by side. */
function stateBar(task) {
  const parts = TASK_STATES.map(([state, colour, name]) => {
    const s = task.states.filter((own) => own.state === state).reduce((sum, own) => sum + own.s, 0);
    const bar = el('i', { title: `${name} ${duration(s)}` });
    bar.style.width = `${s / (task.life_s || 1) * 100}%`;
    bar.style.background = `var(--${colour})`;
    return bar;
  });
  return el('div', { className: 'stacked', 'aria-hidden': 'true' }, ...parts);
}
