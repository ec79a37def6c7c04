SELECT step AS step_start, NULL::BIGINT AS step_end, ending AS observed, good_ending AS expected, segment, name AS signal, start, ratio
FROM against
WHERE name IN ('mismatch_logp_abs', 'mismatch_prob_diff', 'mismatch_k3', 'mismatch_kl') AND rank IS NULL AND layer IS NULL
    AND step IS NOT NULL AND NOT nonfinite AND abs(ending) >= $least * abs(good_ending)
    AND abs(ending) - abs(good_ending) >= CASE WHEN name = 'mismatch_k3' THEN $floor_k3 ELSE $floor END
    AND (
        SELECT coalesce(avg(good_ending - ending), 0) FROM against WHERE name = 'topk_overlap' AND rank IS NULL
    ) < $drop
ORDER BY step, list_position(['mismatch_logp_abs', 'mismatch_prob_diff', 'mismatch_kl', 'mismatch_k3'], name) LIMIT 1
