-- The fall begins after the last row at the peak; rows whose steps were all skipped carry no loss and say nothing.
WITH t AS (SELECT segment, step, loss_scale AS s, loss, bad(loss__state) AS is_bad,
    max(loss_scale) OVER (PARTITION BY segment) AS peak
    FROM train
    WHERE fin(loss_scale)),
f AS (SELECT segment, max(step) FILTER (WHERE s = peak) AS fall, any_value(peak) AS peak, arg_max(s, step) AS last
    FROM t
    GROUP BY segment),
j AS (SELECT t.*, fall, last, row_number() OVER (PARTITION BY t.segment, t.step <= fall ORDER BY t.step DESC) AS back
    FROM t JOIN f USING (segment)
    WHERE f.peak >= $fall * last),
r AS (SELECT segment, any_value(fall) AS fall,
    median(loss) FILTER (WHERE step <= fall AND back <= $window AND fin(loss)) AS before,
    max(loss) FILTER (WHERE step > fall AND fin(loss)) AS top, bool_or(is_bad) AS ruined
    FROM j
    GROUP BY segment)
SELECT fall AS step_start, fall AS step_end, coalesce(top, before) AS observed, before AS expected, segment
FROM r WHERE before > 0 AND NOT ruined AND coalesce(top, before) <= $level * before ORDER BY step_start
