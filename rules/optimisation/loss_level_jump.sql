-- Where several rows qualify (a jump in two strides), the one that parts the levels best is the jump.
WITH t AS (SELECT segment, step, loss AS x, row_number() OVER (PARTITION BY segment ORDER BY step) AS k,
    max(loss) OVER w AS top, median(loss) OVER w AS base, min(loss) OVER tail AS low, median(loss) OVER tail AS level,
    count(*) OVER tail AS after, count(*) OVER w AS before, max(step) OVER tail AS step_end
    FROM train WHERE fin(loss) AND loss > 0
    WINDOW w AS (PARTITION BY segment ORDER BY step ROWS BETWEEN $window PRECEDING AND 1 PRECEDING),
        tail AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)),
s AS (SELECT segment, max_by(t, low / top) AS j
    FROM t WHERE k > $least AND after >= $hold AND base > 1e-3 AND low > $jump * top AND level > $times * base
    GROUP BY segment)
SELECT j.step AS step_start, j.step_end AS step_end, j.level AS observed, j.base AS expected, segment, j.top AS top,
    j.low AS low, j.after AS after, j.before AS before
FROM s ORDER BY step_start
