-- What each tenant pays for interrupts: the part of its CPU time that handlers of interrupts take, which no process of
-- the guest is charged for. A tenant is a set of labels (group_), or one machine without labels. The interval (95 %) is
-- by the differences between hosts.
WITH
  by_host AS (
    SELECT
      host,
      coalesce(group_, vm_name) AS tenant,
      sum(weight_ns / inclusion) AS host_ns,
      sum(CASE WHEN mode IN ('hardirq', 'softirq', 'nmi') THEN weight_ns / inclusion ELSE 0.0 END) AS interrupt_ns
    FROM chosen
    GROUP BY host, coalesce(group_, vm_name)
  ),
  sums AS (
    SELECT
      tenant,
      count(*) AS hosts,
      sum(interrupt_ns) AS own_ns,
      sum(host_ns) AS all_ns,
      sum(interrupt_ns * interrupt_ns) AS own_squares,
      sum(interrupt_ns * host_ns) AS products,
      sum(host_ns * host_ns) AS squares
    FROM by_host
    GROUP BY tenant
  ),
  shares AS (
    SELECT
      tenant,
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
  tenant,
  share,
  -- Engines leave nulls out of greatest() and least().
  CASE WHEN half IS NOT NULL THEN greatest(share - half, 0.0) END AS low,
  CASE WHEN half IS NOT NULL THEN least(share + half, 1.0) END AS high,
  own_ns / 1e9 AS cpu_seconds,
  hosts
FROM spreads
ORDER BY own_ns DESC, tenant
LIMIT 50
