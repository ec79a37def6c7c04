WITH e AS (SELECT segment, min(step) AS first, max(step) AS last, arg_min(eval_loss, step) AS before,
    arg_max(eval_loss, step) AS now
    FROM train
    WHERE fin(eval_loss) AND eval_loss > 0
    GROUP BY segment
    HAVING count(*) >= 2),
t AS (SELECT segment, step, loss AS x, row_number() OVER (PARTITION BY segment ORDER BY step) AS k,
    count(*) OVER (PARTITION BY segment) AS n
    FROM train
    WHERE fin(loss) AND loss > 0),
s AS (SELECT segment, median(x) FILTER (WHERE k <= n / 2) AS early, median(x) FILTER (WHERE k > n / 2) AS late
    FROM t
    GROUP BY segment)
SELECT (SELECT min(step)
    FROM train t
    WHERE t.segment = e.segment AND fin(t.eval_loss) AND t.step > first) AS step_start,
    last AS step_end, now AS observed, late AS expected, segment, now / late AS times
FROM e JOIN s USING (segment) WHERE now > before AND now >= $gap * late AND late <= $fall * early ORDER BY step_start
