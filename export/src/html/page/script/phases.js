// Phases of the guest's boot: a strip of the timeline, and buttons that pick them.

/** Phases in user space; the others are the kernel's. */
const USER_PHASES = ['initrd', 'userspace'];

const phases = ({ phases: list }) => list.map(([name, from, to]) => ({ name, from, to }));

const phaseAt = (profile, time) => phases(profile).find(({ from, to }) => from <= time && time < to);

const phaseText = ({ name, from, to }) => `${name}: ${duration(to - from)}, from ${moment(from, 0.001)} to ${moment(to, 0.001)} s`;

/** Draws the strip; `x` places a time. */
function drawPhases(context, profile, x, { top, height }) {
  context.textBaseline = 'middle';
  for (const { name, from, to } of phases(profile)) {
    const left = x(from);
    const width = x(to) - left;
    context.fillStyle = theme.colour(USER_PHASES.includes(name) ? 'frame-user' : 'frame-kernel');
    context.fillRect(left, top, Math.max(width - 1, 0.5), height);
    const seen = Math.max(left, 0);
    context.fillStyle = theme.colour('frame-text');
    context.fillText(fitted(context, name, left + width - seen - 8), seen + 4, top + height / 2);
  }
}

/** A button for each phase. */
function showPhases(profile, view) {
  const list = phases(profile);
  $('phases').hidden = list.length === 0;
  $('phases').replaceChildren('Boot: ', ...list.map((phase) => link(`${phase.name} ${duration(phase.to - phase.from)}`, `Pick ${phaseText(phase)}`, () => view.pickSeconds(phase.from, phase.to))));
}
