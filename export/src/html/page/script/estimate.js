// Shares of a picked time. Those of the whole run come with the profile, as docs/statistics.md derives them.

/** The 97.5 % quantile of the standard normal distribution. */
const Z = 1.959963984540054;

/** Wilson's score interval for a share `p` of `n` samples that are independent of one another. */
function wilson(p, n) {
  if (n === 0) {
    return { low: 0, high: 1 };
  }
  const z2 = Z * Z;
  const scale = 1 / (1 + z2 / n);
  const centre = (p + z2 / (2 * n)) * scale;
  const half = Z * scale * Math.sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  return { low: Math.max(0, Math.min(p, centre - half)), high: Math.min(1, Math.max(p, centre + half)) };
}
