//! Trouble stays where it is: a lost connection, frames that shrink, a dead exchange, a letter too large, a second daemon, large bodies at the start, a pause
//! with a backlog, answers to another virtual host, many queues that keep silent, what waits for such a queue.

mod answers;
mod dead;
mod frames;
mod intake;
mod lost;
mod second;
mod silent;
mod waits;
