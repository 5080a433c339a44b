import com.alibaba.fastjson2.JSON;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.test.base.RunningBrokers;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs JUnit tests and says what came of each, a line of JSON on standard output.
 *
 * <p>RunTests CLASS[#METHOD,METHOD...] ... : with methods only those, with -METHOD all but those.
 */
public final class RunTests extends RunListener {

    private static final int FRAMES_MAX = 400;

    private final PrintStream out;
    private final Map<String, Failure> failed = new LinkedHashMap<>();
    private final Set<String> ignored = new HashSet<>();

    private RunTests(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] words) {
        PrintStream out = System.out;
        System.setOut(System.err); // for what tests and libraries print
        RunTests listener = new RunTests(out);
        for (String word : words) {
            String[] parts = word.split("#", 2);
            listener.run(parts[0], new HashSet<>(Arrays.asList(parts.length > 1 ? parts[1].split(",") : new String[0])));
        }
        out.flush();
        System.exit(0); // clients of tests leave threads behind
    }

    private void run(String name, Set<String> methods) {
        try {
            Request request = Request.aClass(Class.forName(name));
            JUnitCore core = new JUnitCore();
            core.addListener(this);
            core.run(methods.isEmpty() ? request : request.filterWith(new Chosen(methods)));
        } catch (Throwable error) {
            tell("finished", name, "", "failed", error);
        }
    }

    @Override
    public void testStarted(Description test) {
        tell("started", test.getClassName(), test.getMethodName(), "", null);
    }

    @Override
    public void testFailure(Failure failure) {
        Description test = failure.getDescription();
        if (test.getMethodName() == null) {
            tell("finished", test.getClassName(), "", "failed", failure.getException());
        } else {
            failed.putIfAbsent(test.getDisplayName(), failure);
        }
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
        ignored.add(failure.getDescription().getDisplayName());
    }

    @Override
    public void testIgnored(Description test) {
        tell("finished", test.getClassName(), test.getMethodName(), "ignored", null);
    }

    @Override
    public void testFinished(Description test) {
        Failure failure = failed.remove(test.getDisplayName());
        String outcome = ignored.remove(test.getDisplayName()) ? "ignored" : failure == null ? "passed" : "failed";
        tell("finished", test.getClassName(), test.getMethodName(), outcome,
            failure == null ? null : failure.getException());
    }

    private void tell(String event, String className, String method, String outcome, Throwable error) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("class", className);
        line.put("method", method == null ? "" : method);
        line.put("outcome", outcome);
        line.put("errors", chain(error));
        line.put("where", where(error, className));
        line.put("changed", "finished".equals(event) ? changed() : new ArrayList<>());
        synchronized (out) {
            out.println(JSON.toJSONString(line));
            out.flush();
        }
    }

    private static List<String> changed() {
        try {
            return RunningBrokers.takeChanges();
        } catch (Throwable error) { // it was the brokers' class that failed
            return new ArrayList<>();
        }
    }

    private static List<List<String>> chain(Throwable error) {
        List<List<String>> found = new ArrayList<>();
        for (Throwable each = error; each != null && found.size() < 10; each = each.getCause()) {
            found.add(Arrays.asList(each.getClass().getName(), String.valueOf(each.getMessage())));
        }
        return found;
    }

    /** The line of the test, or of a class above it, that failed. */
    private static String where(Throwable error, String className) {
        if (error == null) {
            return "";
        }
        StackTraceElement[] frames = error.getStackTrace();
        for (int i = 0; i < Math.min(frames.length, FRAMES_MAX); i++) {
            if (frames[i].getClassName().startsWith(className)) {
                return frames[i].getFileName() + ":" + frames[i].getLineNumber();
            }
        }
        return "";
    }

    private static final class Chosen extends Filter {

        private final Set<String> methods;

        private Chosen(Set<String> methods) {
            this.methods = methods;
        }

        @Override
        public boolean shouldRun(Description test) {
            if (test.isSuite()) {
                return test.getChildren().stream().anyMatch(this::shouldRun);
            }
            String name = test.getMethodName();
            boolean only = methods.stream().anyMatch(each -> !each.startsWith("-"));
            return only ? methods.contains(name) : !methods.contains("-" + name);
        }

        @Override
        public String describe() {
            return methods.toString();
        }
    }
}
