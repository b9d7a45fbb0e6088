-- What a worker makes summaries with, as its own environment has it: another machine's says nothing of it.
alter table processes add column summarizer text, add column model text;
