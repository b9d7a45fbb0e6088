alter table processes drop column summarizer, drop column model;
