WITH o AS (SELECT segment, min(step) AS step, count(*) AS n FROM events WHERE kind = 'overflow' AND step IS NOT NULL GROUP BY segment),
t AS (SELECT t.segment, t.step, t.loss, o.step AS fall, bad(t.loss__state) AS is_bad FROM train t JOIN o USING (segment) WHERE n >= $hold),
s AS (SELECT segment, any_value(fall) AS fall, median(loss) FILTER (WHERE step <= fall) AS before, count(loss) FILTER (WHERE step <= fall) AS rows_before,
        max(loss) FILTER (WHERE step > fall AND fin(loss)) AS top, count(loss) FILTER (WHERE step > fall) AS rows_after, bool_or(is_bad) AS ruined FROM t GROUP BY segment)
SELECT fall AS step_start, fall AS step_end, coalesce(top, before) AS observed, before AS expected, segment FROM s
WHERE rows_before >= $before AND before > 0 AND coalesce(top, before) <= $level * before AND NOT ruined ORDER BY step_start
