-- The stacks of a part of the fleet's code (`part`), for a flame graph: frames from the innermost one out, and time.
WITH
  by_stack AS (
    SELECT coalesce(process, '') AS process_name, stack, sum(weight_ns / inclusion) AS own_ns
    FROM part
    GROUP BY coalesce(process, ''), stack
  ),
  texts AS (
    -- Each host and day has its own row of a stack.
    SELECT stack, min(frames) AS frames FROM stacks GROUP BY stack
  )
SELECT
  b.process_name AS process_name,
  coalesce(x.frames, '') AS frames,
  sum(b.own_ns) / 1e3 AS us
FROM by_stack AS b
LEFT JOIN texts AS x ON b.stack = x.stack
GROUP BY b.process_name, coalesce(x.frames, '')
ORDER BY us DESC, process_name, frames
