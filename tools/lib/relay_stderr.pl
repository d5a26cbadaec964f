#!/usr/bin/perl
# relay_stderr.pl REPORT: copies standard input (the standard error of mpirun and of all ranks) to standard error as it comes, but keeps
# back what mpirun says about a rank that failed, and writes the facts of it to the file REPORT:
#
#   pid RANK PID            a rank's own announcement (tools/lib/rank), also kept back
#   signal RANK HOST SIG    mpirun's word that a signal ended the rank
#   code N                  mpirun's word that a rank ended the job with that exit code
#   host HOST               mpirun's word, or a rank's, that HOST does not answer any more; ? when it does not say which
#
# mpirun frames what it has to say in two lines of 74 dashes. A frame is dropped only when its text is one of those below; every
# other byte passes, in order. A frame that is begun and not finished is passed on after a moment.
use strict;
use warnings;
use Errno;
use IO::Handle;

STDERR->autoflush(1);
# It ends when the last writer has: a signal to the whole job must not cut off the ranks' last words.
$SIG{$_} = 'IGNORE' for qw(INT TERM HUP USR1);

my ($report_path) = @ARGV;
open(my $report, '>', $report_path) or die "relay_stderr: cannot write $report_path: $!\n";
$report->autoflush(1);
binmode STDIN;
binmode STDERR;

my $rule = '-' x 74;
my $known = qr/Primary job\s+terminated normally|mpirun (?:detected|noticed) that|MPI_ABORT was invoked on rank/;
my $lost = qr/ORTE has lost communication with a remote daemon|An MPI communication peer process has unexpectedly disconnected/;
# Of a daemon that ended while its ranks ran Open MPI says the same as of one that never started.
my $ended = qr/ORTE was unable to reliably start one or more daemons/;
my $announced = 0;
my $frame = qr/\Q$rule\E\n((?:$known|$lost|$ended)(?:(?!\Q$rule\E).)*?)\Q$rule\E\n/s;
my $remark = qr/mpirun:\ Forwarding\ signal\ \d+\ to\ job\n
  |\[[^\]\s]+:\d+\]\ (?:\d+\ more\ process(?:es)?\ ha(?:s|ve)\ sent\ help\ message|Set\ MCA\ parameter\ "orte_base_help_aggregate")[^\n]*\n
  |\[[^\]\s]+:\d+\]\ \[\[\d+,\d+\],\d+\]\ ORTE_ERROR_LOG:\ [^\n]*\ in\ file\ \S*show_help\.c\ at\ line\ \d+\n/x;
my $announcement = qr/\x1emillrace-rank (\d+) (\d+)\n/;
# The end of the text that may become a frame or an announcement: held back until more comes, or a moment passes.
my $begun = qr/(?:\x1e[^\n]*|-{8,74}|\Q$rule\E\n(?:[^-].*)?)\z/s;
my $patience_s = 0.3;

my $held = '';
while (1) {
  my $ready = '';
  vec($ready, fileno(STDIN), 1) = 1;
  if (length $held && !select($ready, undef, undef, $patience_s)) {
    print STDERR $held;
    $held = '';
    next;
  }
  my $count = sysread(STDIN, my $chunk, 65536);
  next if !defined $count && $!{EINTR};
  last if !$count;
  $held .= $chunk;
  $held =~ s/$announcement/++$announced; print $report "pid $1 $2\n"; ''/ge;
  $held =~ s/$remark//g;
  $held =~ s/$frame/Note($1)/ge;
  # Only a small tail is worth holding: a rank may print dashes of its own.
  my $tail = $held =~ $begun && length $& < 2000 ? $& : '';
  print STDERR substr($held, 0, length($held) - length $tail);
  $held = $tail;
}
print STDERR $held;

sub Note {
  my ($text) = @_;
  return "$rule\n$text$rule\n" if $text =~ $ended && !$announced;
  print $report "host $1\n" if $text =~ /^\s+(?:Remote daemon:.* on node|Peer host:)\s+(\S+)/m;
  print $report "host ?\n" if $text =~ $ended;
  print $report "signal $1 $2 $3\n" if $text =~ /process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+)/;
  print $report "code ", $1 // $2, "\n" if $text =~ /with errorcode (\d+)\.|Exit code:\s+(\d+)/;
  return '';
}
