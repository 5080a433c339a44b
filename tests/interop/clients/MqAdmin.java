import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Base64;

/**
 * Runs mqadmin's own main, unchanged, once for each line of standard input, whose words are parted by tabs. Writes a line
 * for each: what it printed, as Base64. So a virtual machine serves for many commands.
 */
public class MqAdmin {
    private static final long WAIT_MS = 60_000;

    public static void main(String[] none) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
        Class<?> hook = Class.forName("org.apache.rocketmq.remoting.RPCHook");
        Class<?> startup = Class.forName("org.apache.rocketmq.tools.command.MQAdminStartup");
        Method main0 = startup.getMethod("main0", String[].class, hook);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.isEmpty() ? new String[0] : line.split("\t");
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(printed, true);
            System.setOut(out);
            System.setErr(out);
            Thread command = new Thread(() -> {
                try {
                    main0.invoke(null, words, null);
                } catch (Throwable error) {
                    error.printStackTrace(out);
                }
            });
            command.setDaemon(true);
            command.start();
            command.join(WAIT_MS);
            if (command.isAlive()) {
                out.println("it has not ended after " + WAIT_MS + " ms");
            }
            answers.println(Base64.getEncoder().encodeToString(printed.toByteArray()));
        }
        Runtime.getRuntime().halt(0);
    }
}
