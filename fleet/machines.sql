-- The virtual machines of the fleet, and how well they are covered.
SELECT
  host,
  vm,
  max(vm_name) AS name,
  max(coalesce(group_, '')) AS labels,
  max(coalesce(kernel, '')) AS last_kernel,
  max(vcpus) AS vcpu_count,
  count(DISTINCT t) AS windows,
  sum(covered_ns) / 3.6e12 AS hours,
  CAST(sum(samples) AS BIGINT) AS sample_count,
  CAST(sum(lost) AS BIGINT) AS lost_count,
  max(dropped_windows) AS dropped,
  sum(agent_cpu_ns) / (sum(covered_ns) * 1e0) AS agent_cpus,
  max(coalesce(missing, '')) AS not_read
FROM chosen_vms
GROUP BY host, vm
ORDER BY host, name, vm
