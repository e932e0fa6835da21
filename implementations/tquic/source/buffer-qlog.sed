# Upstream's programs write each part of a qlog event, such as a comma, with a system call of its own: two million for a download of 10 MiB.
# Here each event is one.
s/Box::new(qlog),/Box::new(std::io::LineWriter::new(qlog)),/
