-- The functions that take most of the fleet's CPU time.
--
-- A share is the part of the CPU time of the machines in question (`chosen`), over all hosts; `part` has those of their
-- samples whose functions are shown. Its interval (95 %) is by the differences between hosts, each of which is one
-- observation: more samples of the same hosts do not make it narrow. With one host there is none.
WITH
  by_host AS (
    SELECT host, sum(weight_ns / inclusion) AS host_ns
    FROM chosen
    GROUP BY host
  ),
  whole AS (
    SELECT count(*) AS hosts, sum(host_ns) AS all_ns, sum(host_ns * host_ns) AS squares
    FROM by_host
  ),
  by_function AS (
    SELECT
      host,
      coalesce(function, '[unknown]') AS function_name,
      coalesce(module, '') AS module_name,
      sum(weight_ns / inclusion) AS function_ns,
      sum(samples) AS function_samples
    FROM part
    GROUP BY host, coalesce(function, '[unknown]'), coalesce(module, '')
  ),
  sums AS (
    SELECT
      f.function_name AS function_name,
      f.module_name AS module_name,
      sum(f.function_ns) AS own_ns,
      sum(f.function_samples) AS own_samples,
      count(*) AS on_hosts,
      sum(f.function_ns * f.function_ns) AS own_squares,
      sum(f.function_ns * h.host_ns) AS products
    FROM by_function AS f
    JOIN by_host AS h ON f.host = h.host
    GROUP BY f.function_name, f.module_name
  ),
  shares AS (
    SELECT
      s.function_name AS function_name,
      s.module_name AS module_name,
      s.own_ns AS own_ns,
      s.own_samples AS own_samples,
      s.on_hosts AS on_hosts,
      w.hosts AS hosts,
      s.own_ns / w.all_ns AS share,
      -- A host without the function has only its share of all time in the sum of squares.
      s.own_squares - 2 * (s.own_ns / w.all_ns) * s.products
        + (s.own_ns / w.all_ns) * (s.own_ns / w.all_ns) * w.squares AS deviations,
      w.all_ns AS all_ns
    FROM sums AS s
    CROSS JOIN whole AS w
  ),
  spreads AS (
    SELECT
      *,
      -- Quantile 0.975 of Student's t with hosts - 1 degrees of freedom (Abramowitz and Stegun, 26.7.5).
      CASE WHEN hosts > 1 THEN
        (1.959964 + 2.372271 / (hosts - 1) + 2.822499 / power(hosts - 1, 2) + 2.555850 / power(hosts - 1, 3))
          * sqrt(greatest(deviations, 0.0) * hosts / (hosts - 1)) / all_ns
      END AS half
    FROM shares
  )
SELECT
  function_name,
  module_name,
  share,
  -- Engines leave nulls out of greatest() and least().
  CASE WHEN half IS NOT NULL THEN greatest(share - half, 0.0) END AS low,
  CASE WHEN half IS NOT NULL THEN least(share + half, 1.0) END AS high,
  own_ns / 1e9 AS cpu_seconds,
  CAST(own_samples AS BIGINT) AS sample_count,
  on_hosts,
  hosts
FROM spreads
ORDER BY share DESC, function_name, module_name
LIMIT 50
