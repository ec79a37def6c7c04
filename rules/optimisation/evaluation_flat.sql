WITH e AS (SELECT segment, min(step) AS first, max(step) AS last, count(*) AS evals, median(eval_loss) AS mid,
        max(eval_loss) - min(eval_loss) AS span
    FROM train WHERE fin(eval_loss) AND eval_loss > 0 GROUP BY segment),
t AS (SELECT segment, step, loss AS x, row_number() OVER w AS k, count(*) OVER (PARTITION BY segment) AS n,
        step - lag(step) OVER w AS gap
    FROM train WHERE fin(loss) AND loss > 0 WINDOW w AS (PARTITION BY segment ORDER BY step)),
s AS (SELECT segment, min(step) AS start, median(gap) AS gap, median(x) FILTER (WHERE k <= n / 3) AS early,
        median(x) FILTER (WHERE k > n - n / 3) AS late
    FROM t GROUP BY segment)
SELECT first AS step_start, last AS step_end, span AS observed, mid AS expected, segment, evals
FROM e JOIN s USING (segment)
WHERE evals >= 6 AND span <= $span * mid AND late > (1 - $gain) * early AND start <= $start * gap
ORDER BY step_start
