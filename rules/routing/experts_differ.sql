-- Read from topk_overlap of the routers and act_norm_ratio of the layers.
SELECT began AS step_start, last AS step_end, coalesce(loss_second, 0.0) AS observed, loss_first AS expected, segment,
   first_router AS layer, coalesce(stray_first, 0.0) AS apart, 'topk_overlap' AS signal
FROM origin
WHERE loss_first < $agree AND coalesce(stray_input, 0) < $input
   AND (loss_second >= greatest($next, $jump * loss_first) OR stray_first >= $alone
       OR (stray_input IS NOT NULL AND stray_first >= greatest($own, $jump * stray_input)))
   AND starts_at IS NULL
   AND NOT (routers >= 4 AND coalesce(loss_later < $healed * loss_second, false))
   AND NOT coalesce(same_sign AND stray_input IS NULL AND most_shift < $same * least_shift AND turn < $harmless, false)
   AND NOT coalesce(stray_input IS NULL AND last_shift / nullif(first_shift, 0) < $fades, false)
