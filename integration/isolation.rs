//! Trouble stays where it is: a dead exchange, a letter too large, a second daemon, large bodies at the start, a pause
//! with a backlog, answers to another virtual host.

mod answers;
mod dead;
mod intake;
mod second;
