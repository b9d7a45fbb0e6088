-- Outside a transaction: the table is read whole, and nobody is held up.
alter table pins validate constraint ck_pins_source;
