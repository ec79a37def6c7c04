-- Where the scale itself is logged often enough, scale-falls-loss-ordinary says it with the rows.
WITH o AS (SELECT segment, min(step) AS step, count(*) AS n,
        bool_or(kind = 'loss_scale_floor') AS floored, min(value) AS lowest
    FROM events
    WHERE kind IN ('overflow', 'loss_scale_floor')
    GROUP BY segment),
t AS (SELECT o.segment, t.step, t.loss, t.loss_scale, o.step AS fall, floored OR lowest <= $spent AS spent, bad(t.loss__state) AS is_bad
    FROM o LEFT JOIN train t USING (segment)
    WHERE n >= $hold OR floored),
s AS (SELECT segment, any_value(fall) AS fall, median(loss) FILTER (WHERE step <= fall) AS before,
    max(loss) FILTER (WHERE step > fall AND fin(loss)) AS top, bool_or(is_bad) AS ruined, bool_or(spent) AS spent,
    count(loss_scale) AS scales
    FROM t
    GROUP BY segment)
SELECT fall AS step_start, fall AS step_end, coalesce(top, before) AS observed, before AS expected, segment,
    CASE WHEN before IS NOT NULL AND top IS NOT NULL
        THEN printf('the loss stays at its level (%.4g, before %.4g) while the scale falls', coalesce(top, before), before)
        WHEN coalesce(top, before) IS NOT NULL
            THEN printf('the loss is an ordinary number (%.4g) while the scale falls', coalesce(top, before))
        ELSE 'no loss in the log says otherwise' END AS what,
    CASE WHEN before IS NULL THEN 0.65 ELSE 0.75 END AS strength
FROM s
WHERE scales < $rows AND (spent OR before IS NOT NULL OR top IS NOT NULL) AND coalesce(NOT ruined, true) AND coalesce(top <= $level * before, true)
ORDER BY step_start
