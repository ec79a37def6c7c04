SELECT began AS step_start, last AS step_end, loss_second AS observed, loss_later AS expected, segment,
   first_router AS layer, 'topk_overlap' AS signal
FROM origin
WHERE routers >= $routers AND loss_first < $agree AND loss_second >= $next AND loss_later < $healed * loss_second
   AND starts_at IS NULL
