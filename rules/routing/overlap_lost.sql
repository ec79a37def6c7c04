WITH t AS (SELECT segment, step, avg(topk_overlap) AS x FROM layer WHERE fin(topk_overlap) GROUP BY segment, step),
n AS (SELECT *, row_number() OVER (PARTITION BY segment ORDER BY step) AS k, count(*) OVER (PARTITION BY segment) AS n
   FROM t),
b AS (SELECT segment, median(x) FILTER (WHERE k <= least(greatest(5, n // 6), 50)) AS early,
       median(x) FILTER (WHERE k > n - greatest(5, n // 4)) AS late
   FROM n GROUP BY segment),
h AS (SELECT n.*, early, late, x < $level OR x < early - $loss / 2 AS lost FROM n JOIN b USING (segment)),
m AS (SELECT *, share_left(lost, segment, step) AS share FROM h)
SELECT min(step) FILTER (WHERE lost AND share >= 0.7) AS step_start, max(step) AS step_end, any_value(late) AS observed,
   any_value(early) AS expected, segment, 'topk_overlap' AS signal
FROM m GROUP BY segment
HAVING step_start IS NOT NULL AND (any_value(late) <= any_value(early) - $loss OR any_value(late) < $level)
ORDER BY step_start
