drop function gateway_note;
drop function gateway_begin;
drop function gateway_find;
drop function gateway_head_below;
drop function gateway_head;
drop trigger conversations_forget_gateway on conversations;
drop function forget_gateway;
drop table gateway_prefixes;
drop table gateway_conversations;
