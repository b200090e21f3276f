-- What takes more or less CPU time after a change, or on other machines: `after` against `before`.
--
-- The measure is the mean number of CPUs that a function of a program keeps busy in a machine: its CPU time over the
-- time for which machines were recorded (before_vms, after_vms). Each host is one observation. A difference of at
-- least three standard errors is significant: without a change, one function in 370 shows one.
WITH
  before_host AS (
    SELECT host, sum(covered_ns / inclusion) AS host_ns FROM before_vms GROUP BY host
  ),
  after_host AS (
    SELECT host, sum(covered_ns / inclusion) AS host_ns FROM after_vms GROUP BY host
  ),
  before_whole AS (
    SELECT count(*) AS hosts, sum(host_ns) AS base_ns, sum(host_ns * host_ns) AS squares FROM before_host
  ),
  after_whole AS (
    SELECT count(*) AS hosts, sum(host_ns) AS base_ns, sum(host_ns * host_ns) AS squares FROM after_host
  ),
  before_function AS (
    SELECT
      host,
      coalesce(process, '') AS process_name,
      coalesce(function, '[unknown]') AS function_name,
      sum(weight_ns / inclusion) AS function_ns
    FROM before
    GROUP BY host, coalesce(process, ''), coalesce(function, '[unknown]')
  ),
  after_function AS (
    SELECT
      host,
      coalesce(process, '') AS process_name,
      coalesce(function, '[unknown]') AS function_name,
      sum(weight_ns / inclusion) AS function_ns
    FROM after
    GROUP BY host, coalesce(process, ''), coalesce(function, '[unknown]')
  ),
  before_sums AS (
    SELECT
      f.process_name AS process_name,
      f.function_name AS function_name,
      sum(f.function_ns) AS own_ns,
      sum(f.function_ns * f.function_ns) AS own_squares,
      sum(f.function_ns * h.host_ns) AS products
    FROM before_function AS f
    JOIN before_host AS h ON f.host = h.host
    GROUP BY f.process_name, f.function_name
  ),
  after_sums AS (
    SELECT
      f.process_name AS process_name,
      f.function_name AS function_name,
      sum(f.function_ns) AS own_ns,
      sum(f.function_ns * f.function_ns) AS own_squares,
      sum(f.function_ns * h.host_ns) AS products
    FROM after_function AS f
    JOIN after_host AS h ON f.host = h.host
    GROUP BY f.process_name, f.function_name
  ),
  every_name AS (
    SELECT process_name, function_name FROM before_sums
    UNION DISTINCT
    SELECT process_name, function_name FROM after_sums
  ),
  pairs AS (
    SELECT
      e.process_name AS process_name,
      e.function_name AS function_name,
      bw.hosts AS before_hosts,
      aw.hosts AS after_hosts,
      bw.base_ns AS before_base,
      aw.base_ns AS after_base,
      bw.squares AS before_squares,
      aw.squares AS after_squares,
      coalesce(b.own_ns, 0.0) / bw.base_ns AS before_cpus,
      coalesce(a.own_ns, 0.0) / aw.base_ns AS after_cpus,
      coalesce(b.own_squares, 0.0) AS before_own_squares,
      coalesce(a.own_squares, 0.0) AS after_own_squares,
      coalesce(b.products, 0.0) AS before_products,
      coalesce(a.products, 0.0) AS after_products
    FROM every_name AS e
    LEFT JOIN before_sums AS b ON e.process_name = b.process_name AND e.function_name = b.function_name
    LEFT JOIN after_sums AS a ON e.process_name = a.process_name AND e.function_name = a.function_name
    CROSS JOIN before_whole AS bw
    CROSS JOIN after_whole AS aw
  ),
  errors AS (
    SELECT
      process_name,
      function_name,
      before_hosts,
      after_hosts,
      before_cpus,
      after_cpus,
      CASE WHEN before_hosts > 1 AND after_hosts > 1 THEN
        sqrt(
          greatest(before_own_squares - 2 * before_cpus * before_products + before_cpus * before_cpus * before_squares, 0.0)
            * before_hosts / (before_hosts - 1) / (before_base * before_base)
          + greatest(after_own_squares - 2 * after_cpus * after_products + after_cpus * after_cpus * after_squares, 0.0)
            * after_hosts / (after_hosts - 1) / (after_base * after_base)
        )
      END AS standard_error
    FROM pairs
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
