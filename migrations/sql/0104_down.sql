drop function read_context_in_shape;
drop function sent_of_context;
drop function append_sent_turn;
drop function is_reasoning_alone;
drop trigger conversations_forget_sent_messages on conversations;
drop function forget_sent_messages;
drop table sent_messages;
drop function guard_sent_messages;
alter table conversations drop column shape, drop column mixed_shapes, drop column other_model_through;
