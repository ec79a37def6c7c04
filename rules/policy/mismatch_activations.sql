-- A ratio that comes nearer to 1 is two engines that agree better, whatever made them differ before.
WITH t AS (SELECT segment, step, layer, act_norm_ratio AS x, row_number() OVER (PARTITION BY segment, layer ORDER BY step) AS k,
       count(*) OVER (PARTITION BY segment, layer) AS n
   FROM layer WHERE fin(act_norm_ratio) AND layer IS NOT NULL),
b AS (SELECT segment, layer, median(x) FILTER (WHERE k <= least(greatest(5, n // 6), 50)) AS early,
       median(x) FILTER (WHERE k > n - greatest(5, n // 4)) AS late
   FROM t WHERE n >= 12 GROUP BY segment, layer),
h AS (SELECT t.*, early, late, abs(x - early) >= $half * abs(late - early) AS moved,
       share_left(abs(x - early) >= $half * abs(late - early), (segment, layer), step) AS share
   FROM t JOIN b USING (segment, layer)
   WHERE abs(late - early) >= $shift AND abs(late - 1) > abs(early - 1) OR abs(late - 1) >= $level),
o AS (SELECT segment, layer, CASE WHEN abs(any_value(late) - any_value(early)) < $shift THEN min(step)
           ELSE min(step) FILTER (WHERE moved AND share >= 0.6) END AS step_start, max(step) AS step_end,
       any_value(late) AS observed, any_value(early) AS expected
   FROM h GROUP BY segment, layer)
SELECT min(step_start) AS step_start, max(step_end) AS step_end, arg_max(observed, abs(observed - 1)) AS observed,
   arg_max(expected, abs(observed - 1)) AS expected, segment, arg_max(layer, abs(observed - 1)) AS layer,
   'act_norm_ratio' AS signal
FROM o WHERE step_start IS NOT NULL GROUP BY segment
