-- Every rank may print the same overflow, so scales are counted, not lines; at the floor, where the scale stands
-- still, lines. Overflow events in log order; `good` counts metric rows logged before each. Close: at most $gap rows
-- and $near steps apart.
WITH e AS (SELECT e.*, coalesce(before.row, 0) AS good
    FROM events e ASOF LEFT JOIN train before ON e.segment = before.segment AND e.step >= before.step
    WHERE e.kind IN ('overflow', 'loss_scale_floor')),
d AS (SELECT *, CASE WHEN good - lag(good) OVER w <= $gap AND coalesce(step - lag(step) OVER w <= $near, true) THEN 0
    ELSE 1 END AS fresh
    FROM e
    WINDOW w AS (PARTITION BY segment ORDER BY seq)),
g AS (SELECT *, sum(fresh) OVER (PARTITION BY segment ORDER BY seq) AS island FROM d),
s AS (SELECT segment, island, CASE
    WHEN count(value) > 0 THEN greatest(count(DISTINCT value), count(*) FILTER (WHERE value <= $floor))
    ELSE count(*) END AS rows_bad, min(seq) AS first_seq, arg_min(value, seq) AS first_scale,
    arg_max(value, seq) AS last_scale,
        min(good) AS good_before, min(step) AS first_step, max(step) AS last_step, min(source) AS source,
            min(line) AS line, bool_or(kind = 'loss_scale_floor') AS floored,
        CASE WHEN min(text) LIKE '%setting loss scale to%' THEN $fairseq ELSE $low END AS low
    FROM g GROUP BY segment, island),
-- where rows give the step, the line precedes the row of its own step
n AS (SELECT s.*, CASE WHEN good_before > 0 THEN coalesce(t.step, first_step) ELSE first_step END AS step_start
    FROM s ASOF LEFT JOIN train t ON s.segment = t.segment AND s.first_step < t.step),
l AS (SELECT n.*, CASE WHEN good_before > 0 THEN coalesce(t.step, last_step) ELSE last_step END AS step_end
    FROM n ASOF LEFT JOIN train t ON n.segment = t.segment AND n.last_step < t.step)
SELECT step_start, step_end, last_scale AS observed, 2 * first_scale AS expected, segment, rows_bad, source, line,
    CASE WHEN last_scale IS NULL THEN rows_bad || ' overflow messages'
        ELSE printf('%d overflows in a row: loss scale %.10g -> %.10g', rows_bad, 2 * first_scale, last_scale) END AS story,
    CASE WHEN floored THEN ', the minimum: the run cannot go on'
        WHEN last_scale <= $floor THEN ': at 1 and below the gradients themselves overflow' ELSE '' END AS floor_note,
    CASE WHEN floored OR last_scale <= $floor AND rows_bad >= $low_hold OR greatest(first_scale, last_scale) < $floor
        AND rows_bad >= 2 OR first_scale <= low AND rows_bad >= $low_hold AND first_scale >= 2 * last_scale
        OR rows_bad >= $hold AND good_before > 0 AND first_scale >= $fall * last_scale THEN 'root'
            ELSE 'benign' END AS role
FROM l
    WHERE rows_bad >= $hold OR floored OR greatest(first_scale, last_scale) < $floor AND rows_bad >= 2
        OR least(first_scale, last_scale) <= low AND rows_bad >= $low_hold
    ORDER BY first_seq
