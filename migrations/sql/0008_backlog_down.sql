drop function model_totals();
drop function waiting_work();
