#!/usr/bin/perl
# relay_stdout.pl: copies standard input (mpirun's standard output) to standard output as it comes. When that takes no more (its reader has
# ended, the disk is full) a line on standard error says so, the rest is read and dropped, and the exit code is 1: mpirun itself would
# crash, and take the job with it.
use strict;
use warnings;
use Errno;
use IO::Handle;

STDERR->autoflush(1);
# It ends when the last writer has, however the job is stopped.
$SIG{$_} = 'IGNORE' for qw(INT TERM HUP USR1 PIPE);
binmode STDIN;

my $closed = 0;
while (1) {
  my $count = sysread(STDIN, my $chunk, 65536);
  next if !defined $count && $!{EINTR};
  last if !$count;
  for (my $done = 0; !$closed && $done < $count;) {
    my $written = syswrite(STDOUT, $chunk, $count - $done, $done);
    if (defined $written) {
      $done += $written;
    } elsif (!$!{EINTR}) {
      print STDERR "millrace: standard output takes no more ($!); the job goes on.\n";
      $closed = 1;
    }
  }
}
exit $closed;
