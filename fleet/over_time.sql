-- The cost of a part of the fleet's code over time: its share of all CPU time in each window. `part` are the samples of
-- the functions or programs in question, `chosen` those of the same machines. The interval (95 %) is by the differences
-- between hosts.
WITH
  by_host AS (
    SELECT t, host, sum(weight_ns / inclusion) AS host_ns FROM chosen GROUP BY t, host
  ),
  part_host AS (
    SELECT t, host, sum(weight_ns / inclusion) AS part_ns FROM part GROUP BY t, host
  ),
  sums AS (
    SELECT
      h.t AS t,
      count(*) AS hosts,
      sum(coalesce(p.part_ns, 0.0)) AS own_ns,
      sum(h.host_ns) AS all_ns,
      sum(coalesce(p.part_ns, 0.0) * coalesce(p.part_ns, 0.0)) AS own_squares,
      sum(coalesce(p.part_ns, 0.0) * h.host_ns) AS products,
      sum(h.host_ns * h.host_ns) AS squares
    FROM by_host AS h
    LEFT JOIN part_host AS p ON h.t = p.t AND h.host = p.host
    GROUP BY h.t
  ),
  shares AS (
    SELECT
      t,
      hosts,
      own_ns,
      all_ns,
      own_ns / all_ns AS share,
      own_squares - 2 * (own_ns / all_ns) * products + (own_ns / all_ns) * (own_ns / all_ns) * squares AS deviations
    FROM sums
    WHERE all_ns > 0
  ),
  spreads AS (
    SELECT
      *,
      -- As in top.sql.
      CASE WHEN hosts > 1 THEN
        (1.959964 + 2.372271 / (hosts - 1) + 2.822499 / power(hosts - 1, 2) + 2.555850 / power(hosts - 1, 3))
          * sqrt(greatest(deviations, 0.0) * hosts / (hosts - 1)) / all_ns
      END AS half
    FROM shares
  )
SELECT
  t,
  share,
  -- Engines leave nulls out of greatest() and least().
  CASE WHEN half IS NOT NULL THEN greatest(share - half, 0.0) END AS low,
  CASE WHEN half IS NOT NULL THEN least(share + half, 1.0) END AS high,
  own_ns / 1e9 AS cpu_seconds,
  hosts
FROM spreads
ORDER BY t
