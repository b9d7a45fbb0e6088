-- Outside a transaction: the table is read whole, and nobody is held up.
alter table conversations validate constraint ck_conversations_shape;
