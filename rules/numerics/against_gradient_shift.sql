-- Runs of different seeds: only a shift that lasts and that no forward signal went before.
WITH norm AS (
    SELECT * FROM against
    WHERE name = 'grad_norm' AND layer IS NULL AND module IS NULL AND rank IS NULL AND step IS NOT NULL
        AND NOT nonfinite AND NOT twin AND ratio > 0 AND abs(ln(ratio)) BETWEEN ln($least) AND ln($most)
        AND value > 0 AND good > 0 AND abs(ln(ratio / (value / good))) <= ln($grown)
),
earlier AS (
    SELECT count(*) AS signals
    FROM against AS other, norm
    WHERE other.name IN (
        'entropy', 'reward', 'score', 'response_length', 'kl_ref', 'loss', 'mismatch_logp_abs', 'mismatch_prob_diff',
        'mismatch_k3', 'mismatch_kl', 'zero_std_frac', 'aux_loss', 'lr'
    ) AND other.layer IS NULL AND other.x <= norm.x
)
SELECT step AS step_start, step AS step_end, value AS observed, good AS expected, segment, 'grad_norm' AS signal, ratio, sigma
FROM norm, earlier
WHERE earlier.signals = 0
