WITH e AS (SELECT segment, step, eval_loss AS x FROM train WHERE fin(eval_loss) AND eval_loss > 0),
b AS (SELECT segment, arg_min(step, x) AS best_step, min(x) AS best, max(step) AS last_step, arg_max(x, step) AS last
    FROM e
    GROUP BY segment),
a AS (SELECT b.segment, any_value(best_step) AS best_step, any_value(best) AS best, any_value(last_step) AS last_step,
    any_value(last) AS last, min(e.step) AS step_start, count(e.step) AS after, min(e.x) AS low,
    arg_min(e.x, e.step) AS first_after
    FROM b JOIN e ON e.segment = b.segment AND e.step > b.best_step GROUP BY b.segment),
t AS (SELECT a.segment, min(t.loss) FILTER (WHERE t.step <= best_step) AS train_best,
    median(t.loss) FILTER (WHERE t.step > (best_step + last_step) / 2) AS train_now
    FROM a JOIN train t USING (segment)
    WHERE fin(t.loss)
    GROUP BY a.segment),
-- Where the training loss left its level in one row for good, that jump is the failure.
w AS (SELECT segment, step, row_number() OVER (PARTITION BY segment ORDER BY step) AS k, max(loss) OVER before AS top,
    median(loss) OVER before AS base, min(loss) OVER tail AS low, median(loss) OVER tail AS level, count(*) OVER tail AS left_rows
    FROM train WHERE fin(loss) AND loss > 0
    WINDOW before AS (PARTITION BY segment ORDER BY step ROWS BETWEEN $window PRECEDING AND 1 PRECEDING),
        tail AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)),
j AS (SELECT DISTINCT segment FROM w
    WHERE k > $least AND left_rows >= $left AND low > $jump * top AND level > $times * base)
SELECT step_start, last_step AS step_end, last AS observed, best AS expected, segment, after
FROM a JOIN t USING (segment)
    WHERE after >= $hold AND low > $rise * best AND last > $on * first_after AND train_now >= train_best
    AND segment NOT IN (SELECT segment FROM j)
    ORDER BY step_start
