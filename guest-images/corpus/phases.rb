# Phases of known shares of the CPU: phases.rb SECONDS. Prints `phase NAME SECONDS`, by the thread's CPU clock.

def fib(n)
  n < 2 ? n : fib(n - 1) + fib(n - 2)
end

def sieve(n)
  composite = Array.new(n + 1, false)
  count = 0
  candidate = 2
  while candidate <= n
    unless composite[candidate]
      count += 1
      multiple = 2 * candidate
      while multiple <= n
        composite[multiple] = true
        multiple += candidate
      end
    end
    candidate += 1
  end
  count
end

def text(n)
  (0...n).map { |i| "item #{i}" }.join(";").scan(/item \d+/).length
end

def run_fib
  raise unless fib(11) == 89
end

def run_sieve
  raise unless sieve(1000) == 168
end

def run_text
  raise unless text(50) == 50
end

def cpu_seconds
  Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
end

phases = { "fib" => [method(:run_fib), 0.5], "sieve" => [method(:run_sieve), 0.3], "text" => [method(:run_text), 0.2] }
used = Hash.new(0.0)
done = 0.0
while done < Float(ARGV[0])
  done += 0.25
  phases.each do |name, (run, weight)|
    start = now = cpu_seconds
    finish = start + done * weight - used[name]
    while now < finish
      run.call
      now = cpu_seconds
    end
    used[name] += now - start
  end
end
used.each { |name, spent| printf("phase %s %.6f\n", name, spent) }
printf("total %.6f\n", Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID))
