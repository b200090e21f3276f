-- Hosts whose machines wait for a CPU, and what their guests believe.
--
-- `waited` is the part of the vCPUs' time in which they were ready to run without a CPU of the host, as the host has
-- measured it. `believed` is the time that the guests' kernels count as stolen, over the same time, of guests that count it.
WITH
  by_host AS (
    SELECT
      host,
      count(DISTINCT vm) AS machines,
      sum(guest_ns + halted_ns + waiting_ns + kvm_ns + vmm_ns + sampler_ns) AS run_ns,
      sum(waiting_ns) AS waited_ns,
      sum(CASE WHEN steal_ns IS NOT NULL
        THEN guest_ns + halted_ns + waiting_ns + kvm_ns + vmm_ns + sampler_ns ELSE 0 END) AS counted_ns,
      sum(coalesce(steal_ns, 0)) AS stolen_ns
    FROM chosen_vcpus
    GROUP BY host
  )
SELECT
  host,
  machines,
  run_ns / 3.6e12 AS vcpu_hours,
  CASE WHEN run_ns > 0 THEN waited_ns / (run_ns * 1e0) END AS waited,
  CASE WHEN counted_ns > 0 THEN stolen_ns / (counted_ns * 1e0) END AS believed
FROM by_host
ORDER BY waited DESC, host
LIMIT 50
