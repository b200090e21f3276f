# Phases of known shares of the CPU: phases.pl SECONDS. Prints `phase NAME SECONDS`, by the process's CPU clock.
use strict;
use warnings;
use Time::HiRes qw(clock_gettime CLOCK_PROCESS_CPUTIME_ID);

sub fib {
    my ($n) = @_;
    return $n < 2 ? $n : fib($n - 1) + fib($n - 2);
}

sub sieve {
    my ($n) = @_;
    my @composite = (0) x ($n + 1);
    my $count = 0;
    for my $candidate (2 .. $n) {
        next if $composite[$candidate];
        $count++;
        for (my $multiple = 2 * $candidate; $multiple <= $n; $multiple += $candidate) {
            $composite[$multiple] = 1;
        }
    }
    return $count;
}

sub text {
    my ($n) = @_;
    my $text = join(';', map { "item $_" } 1 .. $n);
    my @found = $text =~ /item \d+/g;
    return scalar @found;
}

sub run_fib { die unless fib(11) == 89 }
sub run_sieve { die unless sieve(1000) == 168 }
sub run_text { die unless text(50) == 50 }

sub cpu_seconds { return clock_gettime(CLOCK_PROCESS_CPUTIME_ID) }

my @phases = (['fib', \&run_fib, 0.5, 0], ['sieve', \&run_sieve, 0.3, 0], ['text', \&run_text, 0.2, 0]);
for (my $done = 0.25; $done < $ARGV[0] + 0.125; $done += 0.25) {
    for my $phase (@phases) {
        my ($name, $run, $weight, $used) = @$phase;
        my $start = my $now = cpu_seconds();
        my $end = $start + $done * $weight - $used;
        while ($now < $end) {
            $run->();
            $now = cpu_seconds();
        }
        $phase->[3] += $now - $start;
    }
}
printf("phase %s %.6f\n", $_->[0], $_->[3]) for @phases;
printf("total %.6f\n", cpu_seconds());
