-- What takes more or less CPU time after a change, or on other machines: `after` against `before`.
--
-- The measure is the mean number of CPUs that a function of a program keeps busy in a machine: its CPU time over the
-- time for which machines were recorded (before_vms, after_vms). Each host is one observation. A difference of at
-- least three standard errors is significant: without a change, one function in 370 shows one.
WITH
  machines AS (
    SELECT 'before' AS side, host, covered_ns / inclusion AS covered FROM before_vms
    UNION ALL
    SELECT 'after' AS side, host, covered_ns / inclusion AS covered FROM after_vms
  ),
  by_host AS (
    SELECT side, host, sum(covered) AS host_ns FROM machines GROUP BY side, host
  ),
  names AS (
    SELECT 'before' AS side
    UNION ALL
    SELECT 'after' AS side
  ),
  -- A side without machines has a row as well.
  sides AS (
    SELECT
      n.side AS side,
      count(h.host) AS hosts,
      sum(h.host_ns) AS base_ns,
      sum(h.host_ns * h.host_ns) AS squares
    FROM names AS n
    LEFT JOIN by_host AS h ON n.side = h.side
    GROUP BY n.side
  ),
  sampled AS (
    SELECT 'before' AS side, host, process, function, weight_ns / inclusion AS ns FROM before
    UNION ALL
    SELECT 'after' AS side, host, process, function, weight_ns / inclusion AS ns FROM after
  ),
  by_function AS (
    SELECT
      side,
      host,
      coalesce(process, '') AS process_name,
      coalesce(function, '[unknown]') AS function_name,
      sum(ns) AS function_ns
    FROM sampled
    GROUP BY side, host, coalesce(process, ''), coalesce(function, '[unknown]')
  ),
  sums AS (
    SELECT
      f.side AS side,
      f.process_name AS process_name,
      f.function_name AS function_name,
      sum(f.function_ns) AS own_ns,
      sum(f.function_ns * f.function_ns) AS own_squares,
      sum(f.function_ns * h.host_ns) AS products
    FROM by_function AS f
    JOIN by_host AS h ON f.side = h.side AND f.host = h.host
    GROUP BY f.side, f.process_name, f.function_name
  ),
  every_name AS (
    SELECT DISTINCT process_name, function_name FROM sums
  ),
  -- One row for each name and side, also where the side has no sample of it.
  cpus AS (
    SELECT
      e.process_name AS process_name,
      e.function_name AS function_name,
      s.side AS side,
      s.hosts AS hosts,
      coalesce(f.own_ns, 0.0) / s.base_ns AS busy,
      CASE WHEN s.hosts > 1 THEN
        greatest(
          coalesce(f.own_squares, 0.0)
            - 2 * (coalesce(f.own_ns, 0.0) / s.base_ns) * coalesce(f.products, 0.0)
            + (coalesce(f.own_ns, 0.0) / s.base_ns) * (coalesce(f.own_ns, 0.0) / s.base_ns) * s.squares,
          0.0
        ) * s.hosts / (s.hosts - 1) / (s.base_ns * s.base_ns)
      END AS variance
    FROM every_name AS e
    CROSS JOIN sides AS s
    LEFT JOIN sums AS f
      ON s.side = f.side AND e.process_name = f.process_name AND e.function_name = f.function_name
  ),
  errors AS (
    SELECT
      b.process_name AS process_name,
      b.function_name AS function_name,
      b.hosts AS before_hosts,
      a.hosts AS after_hosts,
      b.busy AS before_cpus,
      a.busy AS after_cpus,
      sqrt(b.variance + a.variance) AS standard_error
    FROM cpus AS b
    JOIN cpus AS a ON b.process_name = a.process_name AND b.function_name = a.function_name
    WHERE b.side = 'before' AND a.side = 'after'
  )
SELECT
  process_name,
  function_name,
  before_cpus,
  after_cpus,
  after_cpus - before_cpus AS change,
  standard_error,
  CASE
    WHEN standard_error IS NULL THEN 'one host'
    WHEN abs(after_cpus - before_cpus) < 3 * standard_error THEN 'no'
    WHEN after_cpus > before_cpus THEN 'slower'
    WHEN after_cpus < before_cpus THEN 'faster'
    ELSE 'no'
  END AS significant,
  before_hosts,
  after_hosts
FROM errors
ORDER BY abs(after_cpus - before_cpus) DESC, process_name, function_name
LIMIT 50
