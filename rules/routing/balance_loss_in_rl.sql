WITH f AS (SELECT segment, min(step) AS step, arg_min(grad_norm, step) AS first, median(grad_norm) FILTER (WHERE row > 2) AS later,
        max(mismatch_mult_prob_error) AS error, median(mismatch_mult_prob_error) AS usual, max(step) AS last,
        coalesce(fact('hyperparameters.aux_coef'), fact('model.aux_coefficient')) AS coefficient
    FROM train WHERE fin(grad_norm) GROUP BY segment HAVING min(row) = 1)
SELECT step AS step_start, last AS step_end, first AS observed, later AS expected, segment, coefficient, first / later AS times,
    error, 'grad_norm' AS signal
FROM f WHERE coefficient > 0 AND segment = 0 AND later > 0 AND first >= $first * later AND error >= $error AND usual <= $usual
ORDER BY segment
